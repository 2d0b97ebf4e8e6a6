"""Language models: text as tokens, GPT, sampling."""
