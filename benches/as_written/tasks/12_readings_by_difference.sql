-- The readings of the hour before each alarm.
SELECT a.id, p.ts, p.v
FROM alarms a
JOIN points p ON p.s = a.s
WHERE a.ts - p.ts <= INTERVAL '1 hour' AND p.ts <= a.ts
