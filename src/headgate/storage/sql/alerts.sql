-- Alerts: conditions that hold, and the messages about them.

-- name: take_alert_turns
-- Take the turns of the alerts that no node has taken since then, and return them. A turn that lies ahead is from before
-- the clock was set back.
INSERT INTO headgate.alert_turn AS turn (alert, at)
SELECT alert, at FROM {rows:turns(alert text, at bigint)}
WHERE true
ON CONFLICT (alert) DO UPDATE SET at = excluded.at
WHERE turn.at <= :before::bigint OR turn.at > excluded.at
RETURNING alert

-- name: set_back_alerts
-- Set the times of alerts back that were last seen while the clock was ahead, so that they end, and are sent, in time.
UPDATE headgate.alert
SET send_at = CASE send_at WHEN :never::bigint THEN send_at ELSE send_at - (seen_at - :now::bigint) END,
    started_at = {least}(started_at, :now::bigint), seen_at = :now::bigint,
    sent_at = CASE WHEN sent_at > :now::bigint THEN :now::bigint ELSE sent_at END,
    ended_at = CASE WHEN ended_at > :now::bigint THEN :now::bigint ELSE ended_at END
WHERE alert {any:alerts text} AND seen_at > :now::bigint

-- name: note_alerts
-- Begin alerts, and note that those that have begun hold still. One that has ended begins again only after its end was
-- delivered.
INSERT INTO headgate.alert AS known (id, alert, condition, subject, value, started_at, seen_at, send_at)
SELECT id, alert, condition, subject, value, :now::bigint, :now::bigint, :now::bigint
FROM {rows:held(id text, alert text, condition text, subject text, value float8)}
WHERE true
ON CONFLICT (alert, condition, subject) DO UPDATE SET value = excluded.value, seen_at = excluded.seen_at
WHERE known.ended_at IS NULL

-- name: end_alerts
-- End those of these alerts that were last seen to hold before then, unless their condition could not be read. A message
-- that is being sent is not sent again at once.
UPDATE headgate.alert SET ended_at = :now, send_at = CASE WHEN tries > 0 THEN send_at ELSE :now END
WHERE alert {any:alerts text} AND ended_at IS NULL AND seen_at <= :before
    AND (alert, condition) NOT IN (SELECT alert, condition FROM {rows:unread(alert text, condition text)})

-- name: due_alerts
-- Return those of these alerts whose next message is due, the longest due first.
SELECT {record:alert}
FROM headgate.alert
WHERE alert {any:alerts text} AND send_at <= :now
ORDER BY send_at, id
LIMIT :count

-- name: alerts
-- Return all alerts, the oldest first.
SELECT {record:alert}
FROM headgate.alert
ORDER BY started_at, id
LIMIT :count

-- part: same_try
id = :id AND sent = :sent AND tries = :tries

-- name: try_alert
-- Note that a node begins to send the next message; no row if another one does, or has.
UPDATE headgate.alert SET tries = tries + 1, send_at = :until WHERE @same_try

-- name: alert_sent
-- Note that a message was delivered, and when the next one is due.
UPDATE headgate.alert
SET sent = sent + 1, sent_at = :now, tries = 0, error = NULL,
    send_at = CASE WHEN ended_at IS NULL THEN :send_at::bigint ELSE :now END
WHERE @same_try

-- name: remove_alert
-- Delete an alert whose end was delivered.
DELETE FROM headgate.alert WHERE @same_try

-- name: alert_failed
-- Note why a message was not delivered, and when it is tried again.
UPDATE headgate.alert SET error = :error, send_at = :send_at WHERE @same_try

-- name: evict_alerts
-- Delete alerts that no node has looked at since then: no code declares them any more, or their end cannot be delivered.
DELETE FROM headgate.alert
WHERE id IN (SELECT id FROM headgate.alert WHERE seen_at <= :before LIMIT :count {for update skip locked})

-- name: note_lost_node
-- Note that a node was found dead. Under an id that has joined again, the last death counts.
INSERT INTO headgate.lost_node (id, name, pid, started_at, beat_at, version, release, lost_at)
SELECT id, name, pid, started_at, beat_at, version, release, :now FROM headgate.node WHERE id = :id
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, pid = excluded.pid, started_at = excluded.started_at, beat_at = excluded.beat_at,
    version = excluded.version, release = excluded.release, lost_at = excluded.lost_at, returned = 0

-- name: add_returned
-- Add to the jobs of a lost node that wait again.
UPDATE headgate.lost_node SET returned = returned + :returned WHERE id = :id

-- name: lost_names
-- Return the names of the nodes that were found dead since then.
SELECT DISTINCT name FROM headgate.lost_node WHERE lost_at > :since ORDER BY name

-- name: lost_nodes
-- Return the last nodes that were found dead since then, the last one first.
SELECT id, name, pid, started_at, beat_at, version, release, lost_at, returned
FROM headgate.lost_node WHERE lost_at > :since ORDER BY lost_at DESC, id LIMIT :count

-- name: set_back_lost_nodes
-- Set back when nodes were found dead while the clock was ahead, so that they are lost for no longer than others.
UPDATE headgate.lost_node SET lost_at = :now WHERE lost_at > :now

-- name: evict_lost_nodes
-- Delete lost nodes of before that, and those before the last :kept ones.
DELETE FROM headgate.lost_node
WHERE id IN (
    SELECT id FROM headgate.lost_node
    WHERE lost_at <= :before
        OR lost_at < (SELECT lost_at FROM headgate.lost_node ORDER BY lost_at DESC LIMIT 1 OFFSET :kept - 1)
    LIMIT :count {for update skip locked}
)
