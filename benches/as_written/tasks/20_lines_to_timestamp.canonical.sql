-- How many log lines each alarm has in the five minutes before it.
SELECT a.id, (SELECT count(*) FROM (SELECT s, arrow_cast(at, 'Timestamp(µs)') AS moment FROM log) l
              WHERE l.s = a.s AND l.moment BETWEEN a.ts - INTERVAL '5 minutes' AND a.ts) AS lines
FROM alarms a
