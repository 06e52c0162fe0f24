"""Enqueues in transactions of the shop's database, as a view would: prints the ids of a commit and of a rollback."""

import asyncio

import django
from django.db import connection, transaction

django.setup()

from tests.faces.contrib.shop.jobs import app  # noqa: E402
from tests.faces.contrib.shop.tasks import insert, sync_tenant  # noqa: E402

asyncio.run(app.migrate())
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE note (name TEXT)")
with transaction.atomic():
    kept = insert.enqueue("committed")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES ('ordered')")
with transaction.atomic():
    lost = insert.enqueue("rolled back")
    transaction.set_rollback(True)
with transaction.atomic():
    gated = sync_tenant.enqueue("acme")
print(kept.id, lost.id, gated.id)  # noqa: T201
app.sync.close()
