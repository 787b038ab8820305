-- The lowest reading of the day of each alarm and the day before.
SELECT a.id, (SELECT min(p.v) FROM points p
              WHERE p.s = a.s AND date_trunc('day', p.ts) BETWEEN date_trunc('day', a.ts) - INTERVAL '1 day' AND date_trunc('day', a.ts)) AS low
FROM alarms a
