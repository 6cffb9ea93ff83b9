"""Hold the bundled data, the probe that is made of them, and a reader of people's own rows."""

if __name__ == "datasets":  # imported in the root of the checkout: Hugging Face's is meant
    from rksp.ground.giving_way import give_way

    give_way(__name__)
