-- Alarms that are the last of their sensor.
SELECT a.id
FROM alarms a
LEFT JOIN alarms b ON b.s = a.s AND b.ts > a.ts
WHERE b.ts IS NULL
