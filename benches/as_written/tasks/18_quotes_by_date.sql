-- For each day and symbol the number of quotes of that day and the day before.
SELECT d.sym, d.day, count(*) AS n
FROM days d
JOIN quotes q ON q.sym = d.sym AND q.ts::date BETWEEN d.day - INTERVAL '1 day' AND d.day
GROUP BY d.sym, d.day
