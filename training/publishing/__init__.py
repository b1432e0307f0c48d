"""Train, measure, export, verify and publish many recipes, one after another: `zoo publish-all`."""
