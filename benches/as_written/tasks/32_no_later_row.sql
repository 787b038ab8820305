-- The last readings before each alarm, all that have the last time.
SELECT a.id, p.v
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts <= a.ts
WHERE NOT EXISTS (SELECT 1 FROM points x WHERE x.s = a.s AND x.ts <= a.ts AND x.ts > p.ts)
