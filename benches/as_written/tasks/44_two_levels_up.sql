-- Sessions with an alarm that had no reading in the ten minutes before it, within the session.
SELECT o.id
FROM sessions o
WHERE EXISTS (
  SELECT 1 FROM alarms a
  WHERE a.s = o.s AND a.ts BETWEEN o.started AND o.ended
    AND NOT EXISTS (SELECT 1 FROM points p WHERE p.s = o.s AND p.ts BETWEEN a.ts - INTERVAL '10 minutes' AND a.ts)
)
