"""A job's identity, its directory's name, and what jobs differ in."""

from lockstep.runs.composition import compose
from lockstep.sweeps.jobs import computed_config, directory_name, identity


def key(*overrides: str) -> str:
    return identity(computed_config(compose(*overrides)))


def test_identity_is_what_is_computed_and_not_where_or_in_which_order() -> None:
    common = ("datamodule=digits", "seed=1", "model.optimizer.lr=0.1")
    one = key(*common, "+datamodule.data_dir=a")
    assert one == key(*common[::-1], "+datamodule.data_dir=b", "run_dir=elsewhere")
    others = [("seed=2", "model.optimizer.lr=0.1"), ("seed=1", "model.optimizer.lr=0.2"), ("seed=1", "trainer.devices=2")]
    assert len({one, *(key(*other) for other in others)}) == 4


def test_directories_are_readable() -> None:
    assert directory_name(["trainer.devices=2", "model.optimizer.lr=0.1"], "abc") == "devices=2_lr=0.1_abc"
    assert directory_name(["+a.b='x y/z'"], "abc") == "b=_x_y_z_abc"
    assert directory_name([], "abc") == "abc"


def test_a_long_directory_s_name_shows_what_it_has_lost() -> None:
    values = [f"model.net.layer{i}={'q' * i}" for i in range(1, 9)]
    assert all(f"layer{i}={'q' * i}" in directory_name(values, "abc") for i in range(1, 9))
    long = directory_name(["data=/a" + "/b" * 100 + "/end", "seed=3"], "abc")
    assert "~" in long
    assert long.endswith("end_seed=3_abc")
    assert directory_name(["text=größe/日本"], "abc") == "text=größe_日本_abc"
    for many in ([f"k{i}={i}" for i in range(100)], [f"{'名' * 40}{i}={'値' * 40}" for i in range(9)]):
        name = directory_name(many, "abc")
        assert len(name.encode()) <= 220
        assert name.endswith("~_abc")
