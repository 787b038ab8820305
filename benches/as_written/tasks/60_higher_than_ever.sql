-- Readings that are higher than all of the week before them.
SELECT p.id
FROM points p
WHERE p.v > (SELECT max(q.v) FROM points q WHERE q.s = p.s AND q.ts >= p.ts - INTERVAL '7 days' AND q.ts < p.ts)
