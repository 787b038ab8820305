-- The readings of the hour before each alarm.
SELECT a.id, p.ts, p.v
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 hour' AND a.ts
