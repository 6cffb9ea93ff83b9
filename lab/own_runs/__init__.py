"""How well past runs correct the classifiers, on sources and families that were left out."""
