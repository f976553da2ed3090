"""OpenAI's API and tasks, translated: bodies into parameters, results into answers, and errors. Pure."""
