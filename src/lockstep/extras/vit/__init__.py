"""Vision Transformers (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

FILES = ["conf/model/vit.yaml", "conf/model/vit_b_16.yaml", "conf/trainer/plan/vit.yaml"]
