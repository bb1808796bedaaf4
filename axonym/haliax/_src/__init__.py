"""The private modules of Haliax from which programs import."""
