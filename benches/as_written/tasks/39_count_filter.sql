-- For every tenth reading how many readings of the day before were lower.
SELECT p.id, (SELECT count(*) FILTER (WHERE q.v < p.v) FROM points q
              WHERE q.s = p.s AND q.ts BETWEEN p.ts - INTERVAL '1 day' AND p.ts) AS lower
FROM points p
WHERE p.id % 10 = 0
