"""A GPT's weights as Hugging Face lays out those of Llama, and back: the names differ by a prefix, the numbers not at all.

Llama has no documents within a row: there is the same where a row is one.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lockstep.config.arguments import shown
from lockstep.config.memory import check_memory
from lockstep.config.rules import Rule, above, integer
from lockstep.errors import config_error
from lockstep.extras.language.gpt import GPT

_PREFIX = "model."  # of LlamaForCausalLM
_ROPE = ("rope_parameters", "rope_scaling")
# What a GPT has no other value of.
_FIXED = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}


_SIZE = integer(1, 2**31)
_RULES = dict.fromkeys(("hidden_size", "num_attention_heads", "max_position_embeddings", "vocab_size"), _SIZE)
_RULES |= {"intermediate_size": _SIZE, "num_hidden_layers": integer(1, 1000)}
_RULES |= {"num_key_value_heads": _SIZE.or_null(), "head_dim": _SIZE.or_null(), "bos_token_id": integer(-1).or_null()}
_RULES |= {"rope_theta": above(0).or_null(), "rms_norm_eps": above(0).or_null()}
_RULES |= {name: Rule("accepted is a group of values", lambda v: isinstance(v, dict)).or_null() for name in _ROPE}


def to_llama(net: GPT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of model.safetensors, and what stands in config.json."""
    block: Any = net.layers[0]
    config = _FIXED | {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": net.embed_tokens.num_embeddings,
        "hidden_size": net.embed_tokens.embedding_dim,
        "intermediate_size": block.mlp.up_proj.out_features,
        "num_hidden_layers": len(net.layers),
        "num_attention_heads": block.self_attn.heads,
        "num_key_value_heads": block.self_attn.kv_heads,
        "head_dim": net.head_width,
        "max_position_embeddings": net.context,
        "rope_theta": net.rope_base,
        "rms_norm_eps": net.norm.eps,
        "bos_token_id": net.separator,
        "eos_token_id": net.separator,
    }
    return {_PREFIX + name: tensor for name, tensor in net.state_dict().items()}, config


def from_llama(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A GPT's state, and the arguments it is made with, input_shape and num_outputs among them.

    Raises ConfigError for what a GPT has not: another kind of model, a head of its own, scaled rotary positions.
    """
    for name, rule in _RULES.items():
        if not rule.test(value := config.get(name)):
            raise config_error(f"config.json {name}", shown(value), rule.words)
    absent: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "tie_word_embeddings": False}
    for name, needed in _FIXED.items():
        if (value := config.get(name, absent.get(name))) != needed:
            raise config_error(f"config.json {name}", value, f"accepted is {needed}")
    rope = next((config[name] for name in _ROPE if config.get(name)), {})
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise config_error("config.json rope_type", kind, "accepted is default")
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if (head_dim := config.get("head_dim") or width // heads) * heads != width:
        raise config_error("config.json head_dim", head_dim, f"accepted is {width // heads}, the width by the heads")
    sizes = {name: config[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    layers = config["num_hidden_layers"] * (2 * width + 3 * config["intermediate_size"])
    check_memory("config.json", sizes, 4 * width * (config["vocab_size"] + layers))
    arguments = {
        "input_shape": [config["max_position_embeddings"]],
        "num_outputs": config["vocab_size"],
        "width": width,
        "depth": config["num_hidden_layers"],
        "heads": heads,
        "mlp_width": config["intermediate_size"],
        "kv_heads": config.get("num_key_value_heads", heads),
        "separator": config.get("bos_token_id"),
        "rope_base": rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }
    return {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, arguments
