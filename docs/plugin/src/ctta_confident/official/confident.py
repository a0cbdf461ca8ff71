"""From the settings of record.py to the hyper-parameters of `confident`."""

from ctta_bench.methods.official import Translation, optimizer


def official(case):
    """The optimiser, and the share under the name that record.py gives it."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {"share": settings["margin"]}


TRANSLATIONS = (Translation("example/confident", "record.py: Confident", "confident", official),)
