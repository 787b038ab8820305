-- For every tenth reading how many readings of the day before were lower.
SELECT p.id, sum(CASE WHEN q.v < p.v THEN 1 ELSE 0 END) AS lower
FROM points p
JOIN points q ON q.s = p.s AND q.ts BETWEEN p.ts - INTERVAL '1 day' AND p.ts
WHERE p.id % 10 = 0
GROUP BY p.id
