-- Readings in the ten minutes before each alarm, where no sensor is a sensor, too.
SELECT a.id, p.v
FROM (SELECT id, ts, nullif(s, 'S3') AS s FROM alarms) a
JOIN (SELECT ts, v, nullif(s, 'S3') AS s FROM points) p ON p.ts BETWEEN a.ts - INTERVAL '10 minutes' AND a.ts AND p.s IS NOT DISTINCT FROM a.s
