-- How many alarms its sensor had on the day of each alarm.
SELECT a.id, (SELECT count(*) FROM alarms q WHERE q.s = a.s AND q.ts >= date_trunc('day', a.ts)
                AND q.ts < date_trunc('day', a.ts) + INTERVAL '1 day') AS n
FROM alarms a
