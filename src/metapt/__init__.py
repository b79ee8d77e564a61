"""metapt: learn how to pre-train, by gradients through pre-training and fine-tuning (Raghu et al., NeurIPS 2021)."""

__version__ = "0.1.0"
