-- The readings in the quarters of an hour that begin in the hour before an alarm.
SELECT a.id, count(*) AS n, max(p.v) AS high
FROM alarms a
JOIN points p ON p.s = a.s AND date_bin(INTERVAL '15 minutes', p.ts) BETWEEN a.ts - INTERVAL '1 hour' AND a.ts
GROUP BY a.id
