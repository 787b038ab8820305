-- How many log lines each alarm has in the five minutes before it.
SELECT a.id, (SELECT count(*) FROM log l
              WHERE l.s = a.s AND to_timestamp(l.at) >= a.ts - INTERVAL '5 minutes' AND to_timestamp(l.at) <= a.ts) AS lines
FROM alarms a
