-- The lowest reading of the day of each alarm and the day before.
SELECT a.id, (SELECT min(p.v) FROM points p
              WHERE p.s = a.s AND p.ts >= date_trunc('day', a.ts) - INTERVAL '1 day' AND p.ts < date_trunc('day', a.ts) + INTERVAL '1 day') AS low
FROM alarms a
