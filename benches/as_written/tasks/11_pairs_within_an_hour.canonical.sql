-- How many pairs of readings of a sensor are within an hour of each other.
SELECT p.s, count(*) AS n
FROM points p
JOIN points q ON q.s = p.s AND q.ts BETWEEN p.ts - INTERVAL '1 hour' AND p.ts
GROUP BY p.s
