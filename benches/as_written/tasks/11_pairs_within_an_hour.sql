-- How many pairs of readings of a sensor are within an hour of each other.
SELECT p.s, count(*) AS n
FROM points p
JOIN points q ON q.s = p.s AND q.ts + INTERVAL '1 hour' >= p.ts AND q.ts <= p.ts
GROUP BY p.s
