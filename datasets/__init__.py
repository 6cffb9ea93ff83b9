"""Hold probe and training tasks, corpora, the plans of the lab and its labelled runs."""

if __name__ == "datasets":  # imported in the root of the checkout: Hugging Face's is meant
    from rksp.ground.giving_way import give_way

    give_way(__name__)
