"""stackformer.tasks"""
