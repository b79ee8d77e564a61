"""The loops: pre-train, meta-pre-train, fine-tune; with resume, seeds, progress and a diagnosis at the end."""
