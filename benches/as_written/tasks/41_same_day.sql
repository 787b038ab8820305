-- How many alarms its sensor had on the day of each alarm.
SELECT a.id, (SELECT count(*) FROM alarms q WHERE q.s = a.s AND date_trunc('day', q.ts) = date_trunc('day', a.ts)) AS n
FROM alarms a
