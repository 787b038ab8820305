-- The last readings before each alarm, by the reading's own sensor.
SELECT a.id, p.v
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts = (SELECT max(x.ts) FROM points x WHERE x.s = a.s AND x.ts < a.ts)
