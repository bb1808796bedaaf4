"""Models that people train, each written with named axes in one file, equal to those of Hugging Face's `transformers`."""
