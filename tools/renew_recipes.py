"""Write the list of recipes that `zoo list` reads: python -m tools.renew_recipes"""

from training.recipes import catalogue
from zoo.files import write_json
from zoo.models.registry import RECIPES_FILE

write_json(RECIPES_FILE, catalogue())
print(f"{len(catalogue())} recipes written to {RECIPES_FILE}")
