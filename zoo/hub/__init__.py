"""The Hugging Face Hub: downloads, errors, pages of published models and pushes."""
