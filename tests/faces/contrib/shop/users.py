"""A process task in a module that imports models, as modules of a project do."""

from django.contrib.auth.models import User

from tests.faces.contrib.shop.jobs import app, connects


@app.task(process=True)
def connects_in_child() -> bool:
    return User is None or connects.function()
