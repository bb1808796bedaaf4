"""The search: candidates, the model that screens them, and the compiler that judges the best."""
