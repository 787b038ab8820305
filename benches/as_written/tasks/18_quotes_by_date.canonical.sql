-- For each day and symbol the number of quotes of that day and the day before.
SELECT d.sym, d.day, count(*) AS n
FROM days d
JOIN quotes q ON q.sym = d.sym AND q.ts >= d.day - INTERVAL '1 day' AND q.ts < d.day + INTERVAL '1 day'
GROUP BY d.sym, d.day
