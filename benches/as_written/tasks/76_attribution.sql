-- The alarms that come within a day of a session's start.
SELECT s.id, a.id AS alarm
FROM sessions s
JOIN alarms a ON a.s = s.s AND a.ts - s.started BETWEEN INTERVAL '0 days' AND INTERVAL '1 day'
