"""Provide numerical kernels: one operation per file, in plain torch and in Triton.

    newton_schulz       the polar factor (Polar Express), of symmetric products
    power_iteration     top singular triplets of many weights, warm-started
    row_cosine          cosines of rows with vectors: signs, moments, histogram
    router_statistics   entropy and load of a router
    cross_entropy       of many logits, some rows at a time (plain torch alone)
    wide_output         a product that is made only when it is read (plain torch alone)
    dispatch            the choice between the two implementations, and its reason

Each module is imported by its own name, so this file costs nothing and cannot fail.
"""

if __name__ == "kernels":  # imported in the root of the checkout: Hugging Face's is meant
    from rksp.ground.giving_way import give_way

    give_way(__name__)
