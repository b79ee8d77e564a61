"""Training loops for pre-training, meta-pre-training and fine-tuning, with resume, seeds, progress and a diagnosis."""
