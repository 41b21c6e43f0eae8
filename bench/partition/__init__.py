"""How a model's layers are best divided over the stages of a pipeline here."""
