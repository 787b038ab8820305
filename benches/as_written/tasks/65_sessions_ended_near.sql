-- Sessions that ended in the hour before an alarm; one without an end counts by its start.
SELECT a.id, s.id AS session
FROM alarms a
JOIN sessions s ON s.s = a.s AND coalesce(s.ended, s.started) > a.ts - INTERVAL '1 hour' AND coalesce(s.ended, s.started) <= a.ts
