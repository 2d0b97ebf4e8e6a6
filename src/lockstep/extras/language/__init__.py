"""Language models: text as tokens, GPT, Llama, sampling."""
