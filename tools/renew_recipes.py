"""Write the list of recipes that `zoo list` reads: python -m tools.renew_recipes"""

from training.recipes import catalogue
from zoo.files import write_json
from zoo.models.registry import RECIPES

write_json(RECIPES, catalogue())
print(f"{len(catalogue())} recipes written to {RECIPES}")
