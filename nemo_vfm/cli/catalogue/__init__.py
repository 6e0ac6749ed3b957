"""Lists the recipes, ingredients and constructors that a user can choose from: for explain, schema and show."""
