-- Alarms that are the last of their sensor.
SELECT a.id
FROM alarms a
WHERE NOT EXISTS (SELECT 1 FROM alarms b WHERE b.s = a.s AND b.ts > a.ts)
