-- For every tenth reading how many readings of the day before were lower.
SELECT p.id, (SELECT count(*) FROM points q
              WHERE q.s = p.s AND q.ts BETWEEN p.ts - INTERVAL '1 day' AND p.ts AND q.v < p.v) AS lower
FROM points p
WHERE p.id % 10 = 0
