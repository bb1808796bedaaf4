"""Models that people train, each in one file, equal to those of Hugging Face's `transformers`."""
